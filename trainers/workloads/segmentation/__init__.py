"""Climate segmentation, following Kurth et al. (arXiv:1810.01993) and MLPerf HPC's DeepCAM; see README.md."""
