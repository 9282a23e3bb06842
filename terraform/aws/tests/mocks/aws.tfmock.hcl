# Values that AWS would give. The provider checks the form of some of them, such as ARNs.

mock_data "aws_partition" {
  defaults = { partition = "aws" }
}

mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::111122223333:role/mocked" }
}

mock_resource "aws_eks_cluster" {
  defaults = {
    endpoint              = "https://mocked.example"
    certificate_authority = [{ data = "bW9ja2Vk" }]
    vpc_config            = { cluster_security_group_id = "sg-0c1a57e0000000000" }
  }
}

mock_resource "aws_security_group" {
  defaults = { id = "sg-0efa0000000000000" }
}

mock_resource "aws_launch_template" {
  defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
}

mock_resource "aws_efs_file_system" {
  defaults = { id = "fs-0123456789abcdef0" }
}

mock_resource "aws_fsx_lustre_file_system" {
  defaults = {
    id         = "fs-0fedcba9876543210"
    dns_name   = "fs-0fedcba9876543210.fsx.us-west-2.amazonaws.com"
    mount_name = "abcdefgh"
  }
}
