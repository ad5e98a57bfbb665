#!/usr/bin/env bash
# A stranger's script: awk descends a noisy quadratic, and prints what it likes to print.
set -eu
awk -v rate="$1" -v batch="$2" -v seed="$3" -v rounds="$4" 'BEGIN {
  srand(seed); modes = 20
  for (i = 0; i < modes; i++) { h[i] = exp(log(0.02) * (1 - i / (modes - 1))); w[i] = 1 }
  for (epoch = 1; epoch <= rounds; epoch++) {
    for (step = 0; step < int(1024 / batch); step++)
      for (i = 0; i < modes; i++) {
        noise = sqrt(-2 * log(1 - rand())) * cos(6.2831853 * rand()) * sqrt(h[i] / batch)
        w[i] -= rate * (h[i] * w[i] + noise)
      }
    loss = 0
    for (i = 0; i < modes; i++) loss += h[i] * w[i] * w[i] / 2
    printf "round %d done, loss now %.6f\n", epoch, loss
  }
}'
