"""What a person sees: progress lines and tables."""
