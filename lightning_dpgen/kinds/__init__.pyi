from .kind import Kind as Kind
