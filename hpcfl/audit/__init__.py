"""A privacy audit: how well the released results distinguish two neighbouring datasets.

A small instance of an algorithm runs many times on each of two neighbouring datasets. An observer
guesses the dataset of each run. TPR is the rate of runs with the canary that are recognised, FPR
the rate of runs without it that are mistaken for such. Under (epsilon, delta)-differential privacy,

    TPR <= exp(epsilon) FPR + delta,

so smaller error rates are evidence against that epsilon (Jagielski, Ullman and Oprea 2020,
"Auditing differentially private machine learning"). One half of the runs chooses the threshold, the
other half bounds the rates (Clopper and Pearson 1934). The bound holds for every mechanism. For
Gaussian noise the rates bound mu >= Phi^-1(TPR) - Phi^-1(FPR), which converts to epsilon exactly
and needs far fewer runs (Nasr et al. 2023, "Tight auditing of differentially private machine
learning"); for other mechanisms this conversion is not valid.

The datasets differ in a canary: a record or a user's data with a clipped gradient, in coordinates
that no other gradient touches. Data and model are made for this purpose; batches, clipping, noise,
contributions, quantisation and the server's step are those of training. The sum of the integers
stands for secure aggregation, because the server sees nothing else. The observer knows all data but
the canary, all settings, the participants, and every device's order of samples.
"""
