"""The authority of the API servers in these tests, and their side of TLS."""

from __future__ import annotations

import pathlib
import ssl

from tests import authority


class Authority(authority.Authority):
    def server(self, folder: pathlib.Path, *hosts: str, clients: bool = False) -> ssl.SSLContext:
        """Make a server's context; with `clients`, for those only whom this authority signed."""
        issued = self.issue("server", hosts=hosts)
        path = folder / "server.pem"
        path.write_text(issued.certificate + issued.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=self.pem)
        return context
