"""The supported model families: BERT, RoBERTa, DistilBERT (text), ViT, DeiT and CLIP zero-shot (images)."""
