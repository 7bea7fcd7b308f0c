"""The inner gloo group, and the network device that it uses."""
