"""The way of the samples from storage to the device: decoding, cropping, prefetching, copying.

Samples stay in their stored type until they are on the device; there the workload's ``prepare`` makes the model's input
of them. Which samples, crops and mirrorings a training sees depends on its seed alone, not on how many threads prepare
them.
"""
