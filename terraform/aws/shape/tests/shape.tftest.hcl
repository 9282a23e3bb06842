# Runs for real: the module has no provider.

run "one_gpu_without_efa" {
  command = plan
  variables {
    instance_type = "g5.xlarge"
    efa           = false
  }
  assert {
    condition     = output.gpus == 1 && output.efa_interfaces == 0
    error_message = "g5.xlarge has one GPU and no EFA"
  }
  assert {
    condition     = length(output.network_interfaces) == 0
    error_message = "without EFA, EC2 chooses the interfaces"
  }
  assert {
    condition     = jsonencode(output.limits) == jsonencode({ "nvidia.com/gpu" = "1" })
    error_message = "a pod asks for the GPU alone"
  }
}

run "efa_that_is_off_costs_no_interface" {
  command = plan
  variables {
    instance_type = "p5.48xlarge"
    efa           = false
  }
  assert {
    condition     = output.efa_interfaces == 0 && length(output.network_interfaces) == 0
    error_message = "efa = false must leave out the interfaces of a type that has EFA"
  }
  assert {
    condition     = !contains(keys(output.limits), "vpc.amazonaws.com/efa")
    error_message = "a pod must not wait for interfaces that no node has"
  }
}

run "one_card_with_efa" {
  command = plan
  variables {
    instance_type = "g5.8xlarge"
    efa           = true
  }
  assert {
    condition = jsonencode(output.network_interfaces) == jsonencode([
      { card = 0, device = 0, type = "interface" },
      { card = 0, device = 1, type = "efa-only" },
    ])
    error_message = "the only card has the node's address and the EFA interface"
  }
}

run "thirty_two_cards" {
  command = plan
  variables {
    instance_type = "p5.48xlarge"
    efa           = true
  }
  assert {
    condition     = length([for each in output.network_interfaces : each if each.type == "efa-only"]) == 32
    error_message = "p5.48xlarge has an EFA interface on each of 32 cards"
  }
  assert {
    condition     = length(output.network_interfaces) == 33 && output.network_interfaces[0].type == "interface"
    error_message = "an EFA-only interface can't be the first one"
  }
  assert {
    condition     = length(distinct([for each in output.network_interfaces : "${each.card}.${each.device}"])) == 33
    error_message = "no two interfaces may have the same card and device"
  }
  assert {
    condition     = [for each in output.network_interfaces : each.card if each.device == 1] == [0]
    error_message = "device 1 is for the second interface of card 0 alone"
  }
  assert {
    condition     = output.limits["vpc.amazonaws.com/efa"] == "32" && output.limits["hugepages-2Mi"] == "5120Mi"
    error_message = "a pod of a whole node asks for all of its interfaces, and for huge pages"
  }
}

run "known_types_have_whole_numbers_of_gpus" {
  command = plan
  variables {
    instance_type = "p5en.48xlarge"
    efa           = true
  }
  assert {
    condition     = output.gpus == 8 && output.efa_interfaces == 16
    error_message = "p5en.48xlarge has 8 GPUs and 16 EFA interfaces"
  }
}

run "type_that_the_table_lacks" {
  command = plan
  variables {
    instance_type  = "p9.96xlarge"
    efa            = true
    gpus_per_node  = 16
    efa_interfaces = 2
  }
  assert {
    condition     = output.gpus == 16 && output.efa_interfaces == 2
    error_message = "given numbers take the place of the table"
  }
}

run "type_that_nobody_knows_is_rejected" {
  command = plan
  variables {
    instance_type = "p9.96xlarge"
    efa           = false
  }
  expect_failures = [output.gpus]
}

run "efa_on_a_type_without_it_is_rejected" {
  command = plan
  variables {
    instance_type = "g5.xlarge"
    efa           = true
  }
  expect_failures = [output.efa_interfaces]
}

run "device_plugin_finds_the_nodes_and_tolerates_their_taint" {
  command = plan
  variables {
    instance_type = "g5.xlarge"
    efa           = false
  }
  assert {
    condition     = output.labels["nvidia.com/gpu.present"] == "true"
    error_message = "NVIDIA's chart selects nodes by this label"
  }
  assert {
    condition     = output.taints[0].key == output.tolerations[0].key && output.taints[0].effect == "NO_SCHEDULE"
    error_message = "the pods must tolerate the taint of the nodes"
  }
}
