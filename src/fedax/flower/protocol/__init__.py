"""What server and clients exchange."""
