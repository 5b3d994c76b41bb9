"""Earlier models, from recurrent networks to the Transformer of 2017: data, training, studies and reports.

Nothing in the rest of the package imports them; their configurations are registered with transformers on first use.
"""
