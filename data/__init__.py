"""Raw inputs to tensors: readers, examples, text, images, batching."""
