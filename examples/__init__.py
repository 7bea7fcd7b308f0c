"""Training scripts as a user would write them, and the demo made of them."""
