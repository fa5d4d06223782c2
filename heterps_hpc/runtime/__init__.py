"""What runs on the ranks: tables, dense stages, the exchange between them, the training loop."""
