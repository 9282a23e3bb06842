# What the instance type of the GPU nodes implies: GPUs, network interfaces, labels, taints, and the limits of a job's
# pod. No provider is needed here, so `terraform test` checks every line.

terraform {
  required_version = ">= 1.9"
}

locals {
  # GPUs, and network cards with EFA, as `aws ec2 describe-instance-types` reports them. Only x86-64 types whose card 0
  # has EFA, or which have none: p6-b300 needs other interfaces.
  known = {
    "g4dn.xlarge"      = { gpus = 1, efa = 0 }
    "g4dn.2xlarge"     = { gpus = 1, efa = 0 }
    "g4dn.4xlarge"     = { gpus = 1, efa = 0 }
    "g4dn.8xlarge"     = { gpus = 1, efa = 1 }
    "g4dn.12xlarge"    = { gpus = 4, efa = 1 }
    "g4dn.16xlarge"    = { gpus = 1, efa = 1 }
    "g5.xlarge"        = { gpus = 1, efa = 0 }
    "g5.2xlarge"       = { gpus = 1, efa = 0 }
    "g5.4xlarge"       = { gpus = 1, efa = 0 }
    "g5.8xlarge"       = { gpus = 1, efa = 1 }
    "g5.12xlarge"      = { gpus = 4, efa = 1 }
    "g5.16xlarge"      = { gpus = 1, efa = 1 }
    "g5.24xlarge"      = { gpus = 4, efa = 1 }
    "g5.48xlarge"      = { gpus = 8, efa = 1 }
    "g6.xlarge"        = { gpus = 1, efa = 0 }
    "g6.8xlarge"       = { gpus = 1, efa = 1 }
    "g6.12xlarge"      = { gpus = 4, efa = 1 }
    "g6.16xlarge"      = { gpus = 1, efa = 1 }
    "g6.24xlarge"      = { gpus = 4, efa = 1 }
    "g6.48xlarge"      = { gpus = 8, efa = 1 }
    "p4d.24xlarge"     = { gpus = 8, efa = 4 }
    "p4de.24xlarge"    = { gpus = 8, efa = 4 }
    "p5.48xlarge"      = { gpus = 8, efa = 32 }
    "p5e.48xlarge"     = { gpus = 8, efa = 32 }
    "p5en.48xlarge"    = { gpus = 8, efa = 16 }
    "p6-b200.48xlarge" = { gpus = 8, efa = 8 }
  }
  found = lookup(local.known, var.instance_type, { gpus = 0, efa = 0 })
  gpus  = var.gpus_per_node != null ? var.gpus_per_node : local.found.gpus
  cards = var.efa_interfaces != null ? var.efa_interfaces : local.found.efa
  efa   = var.efa ? local.cards : 0

  # The first interface has the node's address. The others have none (EFA-only), or p5 nodes would use up a subnet.
  network_interfaces = local.efa == 0 ? [] : concat(
    [{ card = 0, device = 0, type = "interface" }],
    [for card in range(local.efa) : { card = card, device = card == 0 ? 1 : 0, type = "efa-only" }],
  )
}
