# A wrong value is rejected before anything is planned. The messages name the field and what to write instead.

mock_provider "aws" {
  source = "./tests/mocks"
}

mock_provider "helm" {}

variables {
  region             = "us-west-2"
  availability_zones = ["us-west-2a", "us-west-2b"]
  api_cidrs          = ["203.0.113.7/32"]
  gpu_instance_type  = "g5.xlarge"
  gpu_nodes          = { desired = 2 }
  image_registry     = "registry.example/you"
}

run "zone_as_region" {
  command = plan
  variables {
    region             = "us-west-2a"
    availability_zones = ["us-west-2ab", "us-west-2ac"]
  }
  expect_failures = [var.region]
}

run "one_zone" {
  command = plan
  variables {
    availability_zones = ["us-west-2a"]
  }
  expect_failures = [var.availability_zones]
}

run "one_zone_twice" {
  command = plan
  variables {
    availability_zones = ["us-west-2a", "us-west-2a"]
  }
  expect_failures = [var.availability_zones]
}

run "one_of_three_zones_twice" {
  command = plan
  variables {
    availability_zones = ["us-west-2a", "us-west-2b", "us-west-2a"]
  }
  expect_failures = [var.availability_zones]
}

run "zone_of_another_region" {
  command = plan
  variables {
    availability_zones = ["us-west-2a", "us-east-1a"]
  }
  expect_failures = [var.availability_zones]
}

run "gpu_zone_outside" {
  command = plan
  variables {
    gpu_availability_zone = "us-west-2c"
  }
  expect_failures = [var.gpu_availability_zone]
}

run "no_address" {
  command = plan
  variables {
    api_cidrs = []
  }
  expect_failures = [var.api_cidrs]
}

run "address_without_a_range" {
  command = plan
  variables {
    api_cidrs = ["203.0.113.7"]
  }
  expect_failures = [var.api_cidrs]
}

run "small_vpc" {
  command = plan
  variables {
    vpc_cidr = "10.0.0.0/24"
  }
  expect_failures = [var.vpc_cidr]
}

run "old_kubernetes" {
  command = plan
  variables {
    kubernetes_version = "1.29"
  }
  expect_failures = [var.kubernetes_version]
}

run "patch_number" {
  command = plan
  variables {
    kubernetes_version = "1.35.2"
  }
  expect_failures = [var.kubernetes_version]
}

run "no_instance_type" {
  command = plan
  variables {
    gpu_instance_type = "H100"
  }
  expect_failures = [var.gpu_instance_type]
}

run "more_nodes_than_the_maximum" {
  command = plan
  variables {
    gpu_nodes = { desired = 4, max = 2 }
  }
  expect_failures = [var.gpu_nodes]
}

run "unknown_capacity_type" {
  command = plan
  variables {
    gpu_capacity_type = "RESERVED"
  }
  expect_failures = [var.gpu_capacity_type]
}

run "capacity_block_without_a_reservation" {
  command = plan
  variables {
    gpu_capacity_type = "CAPACITY_BLOCK"
  }
  expect_failures = [var.gpu_capacity_type]
}

run "reservation_of_spot_nodes" {
  command = plan
  variables {
    gpu_capacity_type       = "SPOT"
    capacity_reservation_id = "cr-0123456789abcdef0"
  }
  expect_failures = [var.gpu_capacity_type]
}

run "small_disk" {
  command = plan
  variables {
    gpu_disk_gib = 20
  }
  expect_failures = [var.gpu_disk_gib]
}

run "unknown_storage" {
  command = plan
  variables {
    storage = "s3"
  }
  expect_failures = [var.storage]
}

run "odd_size_of_lustre" {
  command = plan
  variables {
    fsx = { capacity_gib = 1300 }
  }
  expect_failures = [var.fsx]
}

run "odd_speed_of_lustre" {
  command = plan
  variables {
    fsx = { mbps_per_tib = 300 }
  }
  expect_failures = [var.fsx]
}

run "values_that_are_no_yaml" {
  command = plan
  variables {
    chart_values = "kueue"
  }
  expect_failures = [var.chart_values]
}

run "name_in_capitals" {
  command = plan
  variables {
    name = "DTJ"
  }
  expect_failures = [var.name]
}

run "reservation_without_its_prefix" {
  command = plan
  variables {
    capacity_reservation_id = "0123456789abcdef0"
  }
  expect_failures = [var.capacity_reservation_id]
}

run "capacity_block_with_an_empty_reservation" {
  command = plan
  variables {
    gpu_capacity_type       = "CAPACITY_BLOCK"
    capacity_reservation_id = ""
  }
  expect_failures = [var.capacity_reservation_id]
}
