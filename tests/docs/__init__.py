"""The generated parts of the documents: written here, and compared with the code by tests."""
