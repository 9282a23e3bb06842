variable "instance_type" {
  description = "EC2 instance type of the GPU nodes."
  type        = string
}

variable "efa" {
  description = "Whether the nodes have EFA interfaces."
  type        = bool
}

variable "gpus_per_node" {
  description = "GPUs of a node. Default: from the table in main.tf."
  type        = number
  default     = null
}

variable "efa_interfaces" {
  description = "EFA interfaces of a node. Default: from the table in main.tf."
  type        = number
  default     = null
}
