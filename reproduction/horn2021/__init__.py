"""Reproduction of Table 1 and Figure 1 of Horn et al. (2021), arXiv:2102.07680."""
