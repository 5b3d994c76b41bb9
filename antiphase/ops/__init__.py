"""Differential attention operators: the public function in ``api``, the specification in ``reference``, and fast
implementations.
"""
