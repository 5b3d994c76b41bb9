"""Differential attention: the public function in ``api``, the specification in ``reference``, fast implementations."""
