"""What stands in the documents and is made from the code: drawn here, and held equal by tests."""
