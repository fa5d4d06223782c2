"""What travels between ranks: routes, channels and the transport under them."""
