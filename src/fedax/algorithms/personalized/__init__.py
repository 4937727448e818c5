"""Methods with a server in which every client ends with a model of its own."""
