"""How long RLMs take and how much they hold, beside what they are compared with; see README.md."""
