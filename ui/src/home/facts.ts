// What goes on at this moment: the link with each of its legs, the slice, and what was served.

import { button, h, onChange, refill, say } from "../dom";
import { confirmed } from "../dialog";
import { engine } from "../engine";
import { milliseconds, number, t } from "../i18n";
import type { Leg, Legs, Network } from "../ipc";
import { act, type Part } from "../store";
import { linkWords, sliceWords } from "../words";

function leg(name: "gateway" | "hub" | "backbone", state: Leg, rtt: number | null): HTMLElement {
  const time = rtt === null ? "" : ` · ${milliseconds(rtt)}`;
  const words = h("span", { class: "state" }, t(`leg.${state}`) + time);
  return h("li", { id: `leg-${name}`, "data-state": state }, h("span", {}, t(`leg.name.${name}`)), words);
}

async function leave(): Promise<void> {
  const question = {
    id: "leaving",
    title: t("leave.title"),
    body: [h("p", {}, t("leave.body"))],
    yes: t("leave.yes"),
    no: t("cancel"),
  };
  if (await confirmed(question)) await act(engine.leave);
}

export function facts(): Part {
  const link = h("dd", { id: "link" });
  const legs = h("ul", { id: "legs", "aria-label": t("facts.legs") });
  const slice = h("dd", { id: "slice" });
  const served = h("dd", { id: "served" });
  const network = h("span", { id: "network", class: "mono" });
  const leaving = button("leave", t("leave"), leave, "quiet");
  const root = h(
    "section",
    { class: "card" },
    h("h3", {}, t("facts.title")),
    h(
      "dl",
      {},
      h("dt", {}, t("facts.link")),
      link,
      h("dt", {}, t("facts.legs")),
      h("dd", {}, legs),
      h("dt", {}, t("facts.slice")),
      slice,
      h("dt", {}, t("facts.served")),
      served,
      h("dt", {}, t("facts.network")),
      h("dd", {}, network, " ", leaving),
    ),
  );
  const showLegs = onChange((now: Legs) =>
    refill(
      legs,
      leg("gateway", now.gateway, now.gateway_rtt_ms),
      leg("hub", now.hub, null),
      leg("backbone", now.backbone, now.backbone_rtt_ms),
    ),
  );
  const showNetwork = onChange((now: Network | null) => {
    say(network, now?.gateways.join(", ") ?? t("facts.no_network"));
    network.title = now === null ? "" : t("facts.operator", { operator: now.operator });
    leaving.hidden = now === null;
  });
  return {
    root,
    update({ engine: status }) {
      say(link, linkWords(status.link));
      link.dataset.kind = status.link.kind;
      showLegs(status.legs);
      say(slice, sliceWords(status.slice));
      slice.dataset.kind = status.slice.kind;
      say(served, t("facts.assignments", { count: number(status.assignments) }));
      showNetwork(status.network);
    },
  };
}
