"""Figures of DPGM (TKDE 2018, ICDM 2017)."""
