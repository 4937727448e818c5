"""Messages between clients and server: codecs, attacks, privacy and its accounting."""
