output "chart_values" {
  description = "Values of the chart dtj-operator, as YAML."
  value       = yamlencode(local.chart_values)
}

output "job" {
  description = "A first job that uses all GPU nodes, as YAML."
  value       = yamlencode(local.job)
}
