"""Runs a small job to its end: `helm test`. Standard library only."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

# Each rank checks what it was started with. The ranks of an image of the user's add up a tensor over gloo, too.
SCRIPT = """
import os
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert size == 2, size
if os.environ["WITH_TORCH"]:
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size, total
    dist.destroy_process_group()
print("rank", rank, "of", size, "is done")
"""


def main():
    name, namespace, image = os.environ["JOB_NAME"], os.environ["JOB_NAMESPACE"], os.environ["JOB_IMAGE"]
    ends = time.monotonic() + float(os.environ["TIMEOUT_SECONDS"])
    path = f"/apis/training.dtj.dev/v1alpha1/namespaces/{namespace}/distributedtrainingjobs"
    trainer = {"name": "trainer", "image": image, "command": ["python3", "-u", "-c", SCRIPT]}
    trainer["env"] = [{"name": "WITH_TORCH", "value": os.environ["WITH_TORCH"]}]
    trainer["imagePullPolicy"] = os.environ["PULL_POLICY"]
    pod = {"containers": [trainer], "imagePullSecrets": json.loads(os.environ["PULL_SECRETS"])}
    more = json.loads(os.environ.get("JOB_SPEC", "{}"))
    body = {
        "apiVersion": "training.dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**more, "replicas": 2, "backend": "gloo", "processesPerPod": 1, "template": {"spec": pod}},
    }
    delete(path, name, ends)
    call("POST", path, body)
    shown = None
    try:
        while time.monotonic() < ends:
            status = call("GET", f"{path}/{name}").get("status", {})
            true = {c["type"]: c for c in status.get("conditions", []) if c["status"] == "True"}
            now = status.get("phase"), status.get("reason")
            if now != shown and now[0]:
                print(*now, flush=True)
                shown = now
            if "Complete" in true:
                print(
                    "the job is complete; gloo added up a tensor:", "yes" if os.environ["WITH_TORCH"] else "not tried"
                )
                return 0
            if "Failed" in true:
                print("the job has failed:", true["Failed"]["reason"], true["Failed"]["message"])
                return 1
            time.sleep(1)
        print("the job is not complete in time; its last conditions are:", json.dumps(status.get("conditions")))
        return 1
    finally:
        delete(path, name, time.monotonic() + 10)


def delete(path, name, ends):
    """Deletes the job, and waits until it is gone."""
    while time.monotonic() < ends:
        try:
            call("DELETE", f"{path}/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return
            raise
        time.sleep(0.5)


def call(verb, path, body=None):
    """Sends a request with the pod's service account, and returns the answer."""
    folder = os.environ.get("ACCOUNT_FOLDER", "/var/run/secrets/kubernetes.io/serviceaccount")
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    url = f"https://{host}:{os.environ['KUBERNETES_SERVICE_PORT']}{path}"
    with open(folder + "/token") as file:
        headers = {"Authorization": "Bearer " + file.read().strip(), "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=verb)
    trusted = ssl.create_default_context(cafile=folder + "/ca.crt")
    with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main())
