"""Integrations with the Hugging Face Hub, timm and transformers."""
