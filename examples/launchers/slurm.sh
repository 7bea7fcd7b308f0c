#!/usr/bin/env bash
# A job of Slurm's: sbatch slurm.sh train.py --epochs 3
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=train-%j.txt
# One task per GPU, or per process of yours. MASTER_ADDR is the first node of the step; set it here if compute nodes
# reach each other by other names. Where a firewall stands between them, FANIN_PORTS says what to let through.
export FANIN_PORTS=${FANIN_PORTS:-5000-5063}
srun fanin rank python "$@"
