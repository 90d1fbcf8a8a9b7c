"""The official Python SDK of the Hyperstack API, unchanged, against a server of ours: an environment,
a key, two VMs through their whole life. It ends at the first thing that is not as it should be.

Takes what it needs from its environment: SDK_URL, SDK_KEY, SDK_CA (a file), SDK_REGION, SDK_FLAVOR,
SDK_IMAGE, SDK_SECONDS (how long a VM may take for anything)."""

import os
import time

import hyperstack as sdk

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGAKhUI8fcdFMscKvyM0cf+hmgo8XjD4fbvmEz8MZ/rc me@there"
SECONDS = float(os.environ["SDK_SECONDS"])


def until(what, look):
    """Looks every half second, as often as the time allows."""
    end = time.monotonic() + SECONDS
    while True:
        seen = look()
        if seen is True:
            print("ok:", what, flush=True)
            return
        assert time.monotonic() < end, f"{what}: still {seen} after {SECONDS} s"
        time.sleep(0.5)


def same(what, seen, wanted):
    assert seen == wanted, f"{what}: {seen!r} instead of {wanted!r}"
    print("ok:", what, flush=True)


def refused(what, status, act):
    """The call is refused with this status, and a body in the envelope."""
    try:
        act()
    except sdk.ApiException as error:
        same(what, error.status, status)
        assert '"error_reason"' in error.body, f"{what}: {error.body}"
        return
    raise AssertionError(f"{what}: was not refused")


def main():
    configuration = sdk.Configuration(
        host=os.environ["SDK_URL"],
        ssl_ca_cert=os.environ["SDK_CA"],
        api_key={"apiKey": os.environ["SDK_KEY"]},
    )
    region, flavor, image = (os.environ["SDK_" + name] for name in ("REGION", "FLAVOR", "IMAGE"))
    with sdk.ApiClient(configuration) as client:
        environments = sdk.EnvironmentApi(client)
        keypairs = sdk.KeypairApi(client)
        vms = sdk.VirtualMachineApi(client)

        regions = sdk.RegionApi(client).list_regions().regions
        same("the region is listed", region in [one.name for one in regions], True)
        groups = sdk.FlavorApi(client).list_flavors(region=region).data
        flavors = [one for group in groups for one in group.flavors]
        found = next(one for one in flavors if one.name == flavor)
        same("there is room for the flavor", found.stock_available, True)
        same("the flavor says what its VFs are", found.features["rdma"]["count"] >= 1, True)
        groups = sdk.ImageApi(client).list_images(region=region).images
        images = [one.name for group in groups for one in group.images]
        same("the image is listed", image in images, True)

        environment = environments.create_environment(
            sdk.CreateEnvironment(name="sdk-python", region=region)
        ).environment
        same("the environment is in its region", environment.region, region)
        keypairs.import_key_pair(
            sdk.ImportKeypairPayload(
                name="key-python", environment_name="sdk-python", public_key=PUBLIC_KEY
            )
        )
        listed = [one.name for one in keypairs.list_key_pairs().keypairs]
        same("the key is listed", "key-python" in listed, True)

        made = vms.create_vms(
            sdk.CreateInstancesPayload(
                name="py",
                environment_name="sdk-python",
                flavor_name=flavor,
                image_name=image,
                key_name="key-python",
                count=2,
                labels=["from-python"],
            )
        ).instances
        same("two VMs have their names", [one.name for one in made], ["py-1", "py-2"])
        ids = [one.id for one in made]
        status = lambda vm: vms.get_vm(vm).instance.status
        is_now = lambda vm, word: status(vm) == word or status(vm)
        for vm in ids:
            until(f"VM {vm} is ACTIVE", lambda: is_now(vm, "ACTIVE"))
        listed = vms.list_vms(environment="sdk-python")
        same("both are listed, oldest first", [one.id for one in listed.instances], ids)
        same("both are counted", listed.count, 2)
        one = vms.get_vm(ids[0]).instance
        ports = one.features["rdma"]["ports"]
        same("its address is that of its first port", one.fixed_ip, ports[0]["address"])
        same("its port has a MAC and a VLAN", bool(ports[0]["mac"] and ports[0]["vlan"]), True)
        same("its key has a name", one.keypair.name, "key-python")
        same("its label is kept", one.labels, ["from-python"])

        vms.stop_vm(ids[0])
        until("it is SHUTOFF once stopped", lambda: is_now(ids[0], "SHUTOFF"))
        same("the other one runs on", status(ids[1]), "ACTIVE")
        vms.start_vm(ids[0])
        until("it is ACTIVE once started", lambda: is_now(ids[0], "ACTIVE"))
        vms.hard_reboot_vm(ids[0])
        until("it is ACTIVE once reset", lambda: is_now(ids[0], "ACTIVE"))
        same("its ports are the same", vms.get_vm(ids[0]).instance.features["rdma"]["ports"], ports)
        events = sdk.VirtualMachineEventsApi(client).list_vm_events(ids[0]).instance_events
        same("its reset is told", "rebooting" in [event.reason for event in events], True)
        refused("hibernation", 400, lambda: vms.hibernate_vm(ids[0]))

        def gone(vm):
            try:
                return status(vm)
            except sdk.exceptions.NotFoundException as error:
                return '"not_found"' in error.body

        for vm in ids:
            vms.delete_vm(vm)
        for vm in ids:
            until(f"VM {vm} is gone, with 404", lambda: gone(vm))
        environments.delete_environment(environment.id)
        refused("the environment is gone", 404, lambda: environments.get_environment(environment.id))


main()
