"""The models that led here, from recurrent networks to the Transformer of 2017: data, training, studies, reports.

Nothing in the rest of the package imports them; their configurations are registered with transformers on first use.
"""
