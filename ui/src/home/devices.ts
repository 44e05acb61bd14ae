// Each GPU with its switch, and what the CPU does and why.

import { h, onChange, refill } from "../dom";
import { engine } from "../engine";
import { bytes, t } from "../i18n";
import type { Device, Status } from "../ipc";
import { act, type Part } from "../store";

function row(device: Device): HTMLElement {
  const id = `device-${device.id}`;
  const use = device.used ? t("device.used") : device.on ? t("device.unused") : t("device.off");
  const memory = device.memory_bytes > 0 ? ` · ${bytes(device.memory_bytes)}` : "";
  const words = h("span", { id: `${id}-use`, class: "small" }, `${t(`device.${device.kind}`)}${memory} · ${use}`);
  const why = device.why === null || device.why === "" ? null : h("span", { class: "small" }, device.why);
  const props = { id, type: "checkbox", role: "switch", checked: device.on, "aria-describedby": `${id}-use` };
  const box = h("input", { ...props, change: () => void act(() => engine.switchDevice(device.id, box.checked)) });
  return h("li", { "data-used": device.used }, h("label", {}, box, h("span", {}, device.name)), words, why);
}

export function devices(): Part {
  const list = h("ul", { id: "devices", class: "plain" });
  const none = h("p", { id: "no-device", class: "small" });
  const show = onChange((now: [Device[], Status["device"]["kind"]]) => {
    const [found, kind] = now;
    refill(list, ...found.map(row));
    none.hidden = found.length > 0;
    none.textContent = kind === "opening" ? t("device.looking") : t("device.none");
  });
  return {
    root: h("section", { class: "card" }, h("h3", {}, t("device.title")), list, none),
    update({ engine: { devices: found, device } }) {
      show([found, device.kind]);
    },
  };
}
