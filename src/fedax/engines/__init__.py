"""Where a run happens: the loop, and the engines that implement the federation's verbs."""
