"""A bundle as a repository of the Hugging Face Hub, readable without hydrant."""
