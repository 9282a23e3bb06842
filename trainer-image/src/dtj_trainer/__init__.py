"""The training library inside the trainer image."""
