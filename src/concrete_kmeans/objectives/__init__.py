"""One small file a method: what is minimised, beside its equations."""
