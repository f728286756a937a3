"""Reference vectors: numbers of the published methods' own code on a tiny CLIP, and what compares ours with them."""
