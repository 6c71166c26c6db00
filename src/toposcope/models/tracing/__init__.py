"""What the heads of a real model do on a text: position in their logits, patterns in their attention, depth."""
