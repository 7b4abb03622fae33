"""The processes of a group: their connection, the messages between them, and how each is read."""
