"""The login to the API server, shared by our own client and kopf's watches."""

from __future__ import annotations

import asyncio
import os

import kopf
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from dtj_operator.errors import OptionError

LOGIN_SECONDS = 30.0


class Login:
    """The service account of the operator's pod, or a kubeconfig if one is named or there is no pod.

    `configuration` stays the same object, so a renewed login reaches everybody who holds it.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        self.kubeconfig = kubeconfig or os.environ.get("KUBECONFIG")
        self.context = context
        self.configuration = Configuration()

    async def load(self) -> None:
        """Reads the credentials, or reads them again. Raises OptionError.

        A silent exec plugin times out after LOGIN_SECONDS.
        """
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                await self._load()
        except (ConfigException, OSError) as error:
            cause = f"no answer in {LOGIN_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
            where = self.kubeconfig or "~/.kube/config, and no service account was mounted"
            raise OptionError(
                f"no way to log in to the API server: {cause} (looked at {where}); set --kubeconfig and --context, "
                "or run in a pod with automountServiceAccountToken: true"
            ) from error

    async def _load(self) -> None:
        if self.kubeconfig or self.context or "KUBERNETES_SERVICE_HOST" not in os.environ:
            await load_kube_config(self.kubeconfig, self.context, self.configuration, persist_config=False)  # type: ignore[no-untyped-call]
        else:
            # The kubelet renews the token on disk; the hook that this call sets reads it again
            # every minute.
            load_incluster_config(self.configuration)  # type: ignore[no-untyped-call]

    async def kopf_connection(self) -> kopf.ConnectionInfo:
        """Returns the same login for kopf.

        kopf calls this again whenever the API server answers 401.
        """
        await self.load()
        configuration = self.configuration
        header = (await configuration.auth_settings()).get("BearerToken", {}).get("value")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            token=header.split(" ", 1)[-1].strip() if header else None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            proxy_url=configuration.proxy,
        )
