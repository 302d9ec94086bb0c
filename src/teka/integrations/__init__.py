"""Use of teka's models and attention with the Hugging Face Hub, timm and transformers."""
