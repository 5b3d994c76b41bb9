"""Differential attention operators: the contract in ``api``, the specification in ``reference``, speed elsewhere."""
