// The official JavaScript SDK of the Hyperstack API, unchanged, against a server of ours: an
// environment, a key, two VMs through their whole life. It ends at the first thing that is not as it
// should be.
//
// Takes what it needs from its environment: SDK_URL, SDK_KEY, SDK_REGION, SDK_FLAVOR, SDK_IMAGE,
// SDK_SECONDS (how long a VM may take for anything), and NODE_EXTRA_CA_CERTS (a file) as Node itself
// takes it.

"use strict";

const assert = require("node:assert");
const sdk = require("@nexgencloud/hyperstack-sdk-javascript");

const PUBLIC_KEY =
  "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGAKhUI8fcdFMscKvyM0cf+hmgo8XjD4fbvmEz8MZ/rc me@there";
const { SDK_URL, SDK_KEY, SDK_REGION, SDK_FLAVOR, SDK_IMAGE } = process.env;
const SECONDS = Number(process.env.SDK_SECONDS);

function same(what, seen, wanted) {
  assert.deepStrictEqual(seen, wanted, `${what}: ${JSON.stringify(seen)}`);
  console.log("ok:", what);
}

// Looks every half second, as often as the time allows.
async function until(what, look) {
  const end = Date.now() + SECONDS * 1000;
  for (;;) {
    const seen = await look();
    if (seen === true) {
      console.log("ok:", what);
      return;
    }
    assert(Date.now() < end, `${what}: still ${seen} after ${SECONDS} s`);
    await new Promise((wake) => setTimeout(wake, 500));
  }
}

// The call is refused with this status, and a body in the envelope.
async function refused(what, status, act) {
  const error = await act().then(() => null, (error) => error);
  assert(error, `${what}: was not refused`);
  same(what, error.status, status);
  same(`${what}, in the envelope`, error.response.body.status, false);
}

async function main() {
  const client = new sdk.ApiClient(SDK_URL);
  client.authentications.apiKey.apiKey = SDK_KEY;
  const environments = new sdk.EnvironmentApi(client);
  const keypairs = new sdk.KeypairApi(client);
  const vms = new sdk.VirtualMachineApi(client);

  const { regions } = await new sdk.RegionApi(client).listRegions();
  same("the region is listed", regions.some((one) => one.name === SDK_REGION), true);
  const { data } = await new sdk.FlavorApi(client).listFlavors({ region: SDK_REGION });
  const flavor = data.flatMap((group) => group.flavors).find((one) => one.name === SDK_FLAVOR);
  same("there is room for the flavor", flavor.stock_available, true);
  const { images } = await new sdk.ImageApi(client).listImages({ region: SDK_REGION });
  const names = images.flatMap((group) => group.images).map((one) => one.name);
  same("the image is listed", names.includes(SDK_IMAGE), true);

  const { environment } = await environments.createEnvironment(
    new sdk.CreateEnvironment("sdk-javascript", SDK_REGION),
  );
  same("the environment is in its region", environment.region, SDK_REGION);
  await keypairs.importKeyPair(
    new sdk.ImportKeypairPayload("sdk-javascript", "key-javascript", PUBLIC_KEY),
  );
  const listedKeys = (await keypairs.listKeyPairs()).keypairs.map((one) => one.name);
  same("the key is listed", listedKeys.includes("key-javascript"), true);

  const payload = new sdk.CreateInstancesPayload(
    2, "sdk-javascript", SDK_FLAVOR, "key-javascript", "js",
  );
  payload.image_name = SDK_IMAGE;
  const made = (await vms.createVMs(payload)).instances;
  same("two VMs have their names", made.map((one) => one.name), ["js-1", "js-2"]);
  const ids = made.map((one) => one.id);
  const status = async (vm) => (await vms.getVM(vm)).instance.status;
  const isNow = async (vm, word) => {
    const seen = await status(vm);
    return seen === word || seen;
  };
  for (const vm of ids) {
    await until(`VM ${vm} is ACTIVE`, () => isNow(vm, "ACTIVE"));
  }
  const listed = await vms.listVMs({ environment: "sdk-javascript" });
  same("both are listed, oldest first", listed.instances.map((one) => one.id), ids);
  same("both are counted", listed.count, 2);
  const { instance } = await vms.getVM(ids[0]);
  const { ports } = instance.features.rdma;
  same("its address is that of its first port", instance.fixed_ip, ports[0].address);

  await vms.stopVM(ids[0]);
  await until("it is SHUTOFF once stopped", () => isNow(ids[0], "SHUTOFF"));
  same("the other one runs on", await status(ids[1]), "ACTIVE");
  await vms.startVM(ids[0]);
  await until("it is ACTIVE once started", () => isNow(ids[0], "ACTIVE"));
  await vms.hardRebootVM(ids[0]);
  await until("it is ACTIVE once reset", () => isNow(ids[0], "ACTIVE"));
  await refused("hibernation", 400, () => vms.hibernateVM(ids[0]));

  for (const vm of ids) {
    await vms.deleteVM(vm);
  }
  const gone = (vm) => status(vm).catch((error) => error.status === 404 || error.message);
  for (const vm of ids) {
    await until(`VM ${vm} is gone, with 404`, () => gone(vm));
  }
  await environments.deleteEnvironment(environment.id);
  await refused("the environment is gone", 404, () => environments.getEnvironment(environment.id));
}

main().catch((error) => {
  console.error(error.response?.text ?? "", error);
  process.exit(1);
});
