"""How much the operator costs and how fast it is with many jobs, beside other operators."""
