"""How the ranks of a group find each other, their switches and their job."""
