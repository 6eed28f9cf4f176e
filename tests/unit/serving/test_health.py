"""/healthz and /readyz."""

from __future__ import annotations

from hami.serving import endpoints
from tests.unit.serving import servers


async def test_readiness_is_what_the_checks_say_now_and_health_is_always() -> None:
    missing = {"caches": "pods are not synced", "leader": "node-2 leads"}
    checks = endpoints.Health(
        {name: lambda name=name: missing[name] for name in missing},  # type: ignore[misc]
        subsets={"webhook": ("caches",)},
    )
    async with servers.serving(*endpoints.health_routes(checks.ready)) as server:

        async def ask(path: str) -> tuple[int, str]:
            status, _, body = await servers.ask(server.port, "GET", path)
            return status, body.decode()

        assert await ask("/healthz") == (200, "ok\n")
        want = "[-] caches: pods are not synced\n[-] leader: node-2 leads\nnot ready\n"
        assert await ask("/readyz") == (503, want)
        assert (await ask("/readyz?webhook"))[0] == 503
        missing["caches"] = ""
        assert await ask("/readyz") == (503, "[+] caches\n[-] leader: node-2 leads\nnot ready\n")
        assert await ask("/readyz?webhook") == (200, "[+] caches\nok\n")
        missing["leader"] = ""
        assert await ask("/readyz") == (200, "[+] caches\n[+] leader\nok\n")
        assert await ask("/healthz") == (200, "ok\n")
