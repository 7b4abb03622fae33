"""The attention operators, their biases and score terms, and the forms of other libraries."""
