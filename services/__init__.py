"""Services on the engines, each a slice of its own, written on what `import ferryman` offers and nothing else."""
