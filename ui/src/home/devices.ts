// Each GPU with its switch, and what the CPU does and why.

import { h, onChange, refill } from "../dom";
import { engine } from "../engine";
import { bytes, t } from "../i18n";
import type { Device } from "../ipc";
import { act, type Part } from "../store";

function useWords(device: Device, isLost: boolean): string {
  if (!device.on) return t("device.off");
  if (!device.used) return t("device.unused");
  return isLost ? t("device.lost") : t("device.used");
}

function row(device: Device, isLost: boolean): HTMLElement {
  // What stands in a list of ids has no blanks.
  const id = `device-${device.id.replace(/\W+/g, "-")}`;
  const memory = device.memory_bytes > 0 ? ` · ${bytes(device.memory_bytes)}` : "";
  const words = h("span", { id: `${id}-use`, class: "small" }, `${t(`device.${device.kind}`)}${memory} · ${useWords(device, isLost)}`);
  const why = device.why === null || device.why === "" ? null : h("span", { class: "small" }, device.why);
  const props = { id, type: "checkbox", role: "switch", checked: device.on, "aria-describedby": `${id}-use` };
  const turn = async (): Promise<void> => {
    // What was refused is as it was.
    if (!(await act(() => engine.switchDevice(device.id, box.checked)))) box.checked = device.on;
  };
  const box = h("input", { ...props, change: () => void turn() });
  return h("li", { "data-used": device.used }, h("label", {}, box, h("span", {}, device.name)), words, why);
}

export function devices(): Part {
  const list = h("ul", { id: "devices", class: "plain" });
  const none = h("p", { id: "no-device", class: "small" });
  const show = onChange(([found, isLooking, isLost]: [Device[], boolean, boolean]) => {
    refill(list, ...found.map((device) => row(device, isLost)));
    none.hidden = found.length > 0;
    none.textContent = isLooking ? t("device.looking") : t("device.none");
  });
  return {
    root: h("section", { class: "card" }, h("h3", {}, t("device.title")), list, none),
    update({ engine: { devices: found, device, link } }) {
      show([found, device.kind === "opening", link.kind === "no_hardware"]);
    },
  };
}
