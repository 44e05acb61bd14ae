#!/usr/bin/env python3
# Independent float64 numpy forward written from the published descriptions of both models (HF path, and GGUF path WITHOUT un-permuting V heads), checked against the goldens.
# Run from any directory: spec_check.py   (needs numpy, safetensors, torch for BF16 reading, gguf)
import json, sys, numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import load_file as lt
sig=lambda x:1/(1+np.exp(-x)); silu=lambda x:x*sig(x); softplus=lambda x:np.logaddexp(0,x)
def rms(x,w,eps=1e-6): return x/np.sqrt((x*x).mean(-1,keepdims=True)+eps)*w
def softmax(x): e=np.exp(x-x.max(-1,keepdims=True)); return e/e.sum(-1,keepdims=True)
class M:
    def rope(s,x,pos):  # x [T,h,d]
        n=s.rot//2; f=s.theta**(-2*np.arange(n)/s.rot); a=pos[:,None]*f; c,sn=np.cos(a)[:,None],np.sin(a)[:,None]
        y=x.copy(); a1,a2=x[...,:n],x[...,n:2*n]; y[...,:n]=a1*c-a2*sn; y[...,n:2*n]=a2*c+a1*sn; return y
    def attn(s,L,x,st,pos):
        T=len(x); d=s.d; q=(x@L['q'].T).reshape(T,s.nh,-1)
        gate=None
        if s.gated: q,gate=q[...,:d],q[...,d:]
        k=(x@L['k'].T).reshape(T,s.nkv,d); v=(x@L['v'].T).reshape(T,s.nkv,d)
        q=s.rope(rms(q,L['qn']),pos); k=s.rope(rms(k,L['kn']),pos)
        if 'K' in st: k=np.concatenate([st['K'],k]); v=np.concatenate([st['V'],v])
        st['K'],st['V']=k,v; r=s.nh//s.nkv; o=np.zeros((T,s.nh,d))
        for h in range(s.nh):
            sc=q[:,h]@k[:,h//r].T/np.sqrt(d); m=np.arange(k.shape[0])[None]>(pos[:,None]); sc[m]=-1e30; o[:,h]=softmax(sc)@v[:,h//r]
        if gate is not None: o=o*sig(gate)
        return o.reshape(T,-1)@L['o'].T
    def gdn(s,L,x,st):
        T=len(x); Hk,Hv,d=s.Hk,s.Hv,s.dk; kd=Hk*d
        u=x@L['qkv'].T; z=(x@L['z'].T).reshape(T,Hv,d); beta=sig(x@L['b'].T); g=L['negA']*softplus(x@L['a'].T+L['dt'])
        prev=st.get('conv',np.zeros((3,u.shape[1]))); uu=np.concatenate([prev,u]); st['conv']=uu[-3:]
        c=silu(sum(L['cw'][:,j]*uu[j:j+T] for j in range(4)))
        q=c[:,:kd].reshape(T,Hk,d); k=c[:,kd:2*kd].reshape(T,Hk,d); v=c[:,2*kd:].reshape(T,Hv,d)
        l2=lambda t:t/np.sqrt((t*t).sum(-1,keepdims=True)+1e-6); q=l2(q)/np.sqrt(d); k=l2(k)
        S=st.get('S',np.zeros((Hv,d,d))); o=np.zeros((T,Hv,d))
        for t in range(T):
            for h in range(Hv):
                kh=h%Hk if s.tiled else h//(Hv//Hk)
                S[h]=S[h]*np.exp(g[t,h]); e=v[t,h]-S[h].T@k[t,kh]; S[h]=S[h]+np.outer(k[t,kh],beta[t,h]*e); o[t,h]=S[h].T@q[t,kh]
        st['S']=S
        return (rms(o,L['n'])*silu(z)).reshape(T,-1)@L['out'].T
    def moe(s,L,x):
        p=softmax(x@L['r'].T); ids=np.argsort(-p,-1,kind='stable')[:,:s.k]; w=np.take_along_axis(p,ids,-1); w=w/w.sum(-1,keepdims=True)
        y=np.zeros_like(x)
        for t in range(len(x)):
            for j in range(s.k):
                e=ids[t,j]; y[t]+=w[t,j]*(L['ed'][e]@(silu(L['eg'][e]@x[t])*(L['eu'][e]@x[t])))
        if 'sg' in L: y=y+sig(x@L['sgate'].reshape(-1,1))*((silu(x@L['sg'].T)*(x@L['su'].T))@L['sd'].T)
        return y,ids,w
    def layer(s,L,x,st,pos,rec):
        h=rms(x,L['n1']); x=x+(s.gdn(L,h,st) if rec else s.attn(L,h,st,pos))
        y,ids,w=s.moe(L,rms(x,L['n2'])); return x+y,ids,w
    def fwd(s,ids,sts,pos0=0):
        x=s.emb[ids]; pos=pos0+np.arange(len(ids)); hs=[x]; R=[]
        for i,L in enumerate(s.layers): x,a,w=s.layer(L,x,sts[i],pos,s.rec[i]); hs.append(x); R.append((a,w))
        h=rms(x,s.norm); return h@s.head.T,h,hs,R
def hf(dirn):
    c=json.load(open(dirn+'/config.json')); is35='text_config' in c; t=c.get('text_config',c)
    import glob; W={}
    for f in sorted(glob.glob(dirn+'/model*.safetensors')): W.update({k:v.float().numpy().astype(np.float64) for k,v in lt(f).items()})
    P='model.language_model.' if is35 else 'model.'; one=1.0 if is35 else 0.0; m=M(); m.tiled=False; m.gated=is35
    m.nh,m.nkv,m.d=t['num_attention_heads'],t['num_key_value_heads'],t['head_dim']; rp=t.get('rope_parameters') or {}
    m.theta=rp.get('rope_theta',t.get('rope_theta')); m.rot=int(m.d*(rp.get('partial_rotary_factor',1.0) if is35 else 1)); m.k=t['num_experts_per_tok']; E=t['num_experts']
    if is35: m.Hk,m.Hv,m.dk=t['linear_num_key_heads'],t['linear_num_value_heads'],t['linear_key_head_dim']
    def lay(p,rec):
        L={'n1':one+W[p+'input_layernorm.weight'],'n2':one+W[p+'post_attention_layernorm.weight']}
        if rec:
            q=p+'linear_attn.'; L.update(qkv=W[q+'in_proj_qkv.weight'],z=W[q+'in_proj_z.weight'],a=W[q+'in_proj_a.weight'],b=W[q+'in_proj_b.weight'],cw=W[q+'conv1d.weight'][:,0],negA=-np.exp(W[q+'A_log']),dt=W[q+'dt_bias'],n=W[q+'norm.weight'],out=W[q+'out_proj.weight'])
        else:
            q=p+'self_attn.'; L.update(q=W[q+'q_proj.weight'],k=W[q+'k_proj.weight'],v=W[q+'v_proj.weight'],o=W[q+'o_proj.weight'],qn=one+W[q+'q_norm.weight'],kn=one+W[q+'k_norm.weight'])
        q=p+'mlp.'; L['r']=W[q+'gate.weight']
        if q+'experts.gate_up_proj' in W: gu=W[q+'experts.gate_up_proj']; I=gu.shape[1]//2; L.update(eg=gu[:,:I],eu=gu[:,I:],ed=W[q+'experts.down_proj'])
        else: L.update({a:np.stack([W[f'{q}experts.{e}.{n}_proj.weight'] for e in range(E)]) for a,n in (('eg','gate'),('eu','up'),('ed','down'))})
        if is35: L.update(sg=W[q+'shared_expert.gate_proj.weight'],su=W[q+'shared_expert.up_proj.weight'],sd=W[q+'shared_expert.down_proj.weight'],sgate=W[q+'shared_expert_gate.weight'])
        return L
    n=t['num_hidden_layers']; m.rec=[is35 and (i+1)%t['full_attention_interval']!=0 for i in range(n)]
    m.layers=[lay(f'{P}layers.{i}.',m.rec[i]) for i in range(n)]; m.emb=W[P+'embed_tokens.weight']; m.norm=one+W[P+'norm.weight']; m.head=W['lm_head.weight']
    m.mtp=None
    if 'mtp.fc.weight' in W: m.mtp=dict(L=lay('mtp.layers.0.',False),fc=W['mtp.fc.weight'],e=1+W['mtp.pre_fc_norm_embedding.weight'],h=1+W['mtp.pre_fc_norm_hidden.weight'],n=1+W['mtp.norm.weight'])
    return m
def gg(path):
    from gguf import GGUFReader,dequantize
    r=GGUFReader(path); kv={k:f.contents() for k,f in r.fields.items()}; a=kv['general.architecture']+'.'; W={t.name:np.array(dequantize(t.data,t.tensor_type),dtype=np.float64) for t in r.tensors}
    is35=a=='qwen35moe.'; m=M(); m.tiled=True; m.gated=is35; m.nh,m.nkv,m.d=kv[a+'attention.head_count'],kv[a+'attention.head_count_kv'],kv[a+'attention.key_length']
    m.theta=kv[a+'rope.freq_base']; m.rot=kv.get(a+'rope.dimension_count',m.d); m.k=kv[a+'expert_used_count']; nx=kv.get(a+'nextn_predict_layers',0); n=kv[a+'block_count']-nx
    if is35: m.Hk,m.Hv,m.dk=kv[a+'ssm.group_count'],kv[a+'ssm.time_step_rank'],kv[a+'ssm.state_size']
    m.rec=[is35 and (i+1)%kv[a+'full_attention_interval']!=0 for i in range(n)]
    def lay(i,rec):
        b=lambda x:W[f'blk.{i}.{x}']; L={'n1':b('attn_norm.weight'),'n2':b('post_attention_norm.weight' if is35 else 'ffn_norm.weight')}
        if rec: L.update(qkv=b('attn_qkv.weight'),z=b('attn_gate.weight'),a=b('ssm_alpha.weight'),b=b('ssm_beta.weight'),cw=b('ssm_conv1d.weight'),negA=b('ssm_a'),dt=b('ssm_dt.bias'),n=b('ssm_norm.weight'),out=b('ssm_out.weight'))
        else: L.update(q=b('attn_q.weight'),k=b('attn_k.weight'),v=b('attn_v.weight'),o=b('attn_output.weight'),qn=b('attn_q_norm.weight'),kn=b('attn_k_norm.weight'))
        L.update(r=b('ffn_gate_inp.weight'),eg=b('ffn_gate_exps.weight'),eu=b('ffn_up_exps.weight'),ed=b('ffn_down_exps.weight'))
        if is35: L.update(sg=b('ffn_gate_shexp.weight'),su=b('ffn_up_shexp.weight'),sd=b('ffn_down_shexp.weight'),sgate=b('ffn_gate_inp_shexp.weight'))
        return L
    m.layers=[lay(i,m.rec[i]) for i in range(n)]; m.emb=W['token_embd.weight']; m.norm=W['output_norm.weight']; m.head=W['output.weight']; m.mtp=None
    if nx: i=n; m.mtp=dict(L=lay(n,False),fc=W[f'blk.{n}.nextn.eh_proj.weight'],e=W[f'blk.{n}.nextn.enorm.weight'],h=W[f'blk.{n}.nextn.hnorm.weight'],n=W[f'blk.{n}.nextn.shared_head_norm.weight'])
    return m
def check(name,m,g,P):
    ids=g['input_ids']; lo,h,hs,R=m.fwd(ids,[{} for _ in m.layers]); D=lambda a,b:float(np.abs(a-b).max())
    rep=dict(logits=D(lo,g['logits']),hidden=max(D(hs[i],g[f'hidden.{i}']) for i in range(len(hs))),ids=all((np.sort(R[i][0])==np.sort(g[f'topk_ids.{i}'])).all() for i in range(len(R))))
    st=[{} for _ in m.layers]; m.fwd(ids[:P],st)
    if 'state_conv.0' in g:
        for i in range(len(st)):
            if f'state_conv.{i}' in g: rep['conv']=max(rep.get('conv',0),D(st[i]['conv'].T,g[f'state_conv.{i}'])); rep['S']=max(rep.get('S',0),D(st[i]['S'],g[f'state_rec.{i}']))
            else: rep['K']=D(st[i]['K'].transpose(1,0,2),g[f'cache_k.{i}'])
    d=[]; 
    for t in range(P,len(ids)): d.append(m.fwd(ids[t:t+1],st,t)[0][0])
    rep['decode']=D(np.array(d),g['decode_logits']); cur=d[-1]; gr=[]; t=len(ids)
    for _ in range(len(g['greedy_ids'])): n=int(cur.argmax()); gr.append(n); cur=m.fwd(np.array([n]),st,t)[0][0]; t+=1
    rep['greedy']=bool((np.array(gr)==g['greedy_ids']).all())
    if m.mtp and 'mtp_logits' in g:
        q=m.mtp; x=np.concatenate([rms(m.emb[g['mtp_next_ids']],q['e']),rms(h,q['h'])],-1)@q['fc'].T; y,_,_=m.layer(q['L'],x,{},np.arange(len(ids)),False); rep['mtp']=D(rms(y,q['n'])@m.head.T,g['mtp_logits'])
    print(name,{k:(f'{v:.1e}' if isinstance(v,float) else v) for k,v in rep.items()},flush=True)
import os; B=os.path.dirname(os.path.abspath(__file__))+'/'
check('HF q35moe-tiny',hf(B+'q35moe-tiny'),load_file(B+'q35moe-tiny/golden.safetensors'),68)
check('HF q3moe-tiny',hf(B+'q3moe-tiny'),load_file(B+'q3moe-tiny/golden.safetensors'),30)
check('GGUF q35 BF16',gg(B+'q35moe-tiny/model-BF16.gguf'),{k:v for k,v in load_file(B+'q35moe-tiny/golden.safetensors').items() if not k.startswith('state')},68)
check('GGUF q35 Q8_0',gg(B+'q35moe-tiny/model-Q8_0.gguf'),load_file(B+'q35moe-tiny/golden-Q8_0.safetensors'),68)
check('GGUF k256 Q4_K_M',gg(B+'q35moe-k256/model-Q4_K_M.gguf'),load_file(B+'q35moe-k256/golden-Q4_K_M.safetensors'),16)
check('GGUF q3 BF16',gg(B+'q3moe-tiny/model-BF16.gguf'),load_file(B+'q3moe-tiny/golden.safetensors'),30)
g=load_file(B+'q35moe-tiny/golden.safetensors'); m=hf(B+'q35moe-tiny'); L=m.layers[0]
print('expert_y',np.abs(np.stack([(silu(g['expert_x']@L['eg'][e].T)*(g['expert_x']@L['eu'][e].T))@L['ed'][e].T for e in range(16)])-g['expert_y']).max())
# chunked form from the spec, against gdn.*
l2=lambda t:t/np.sqrt((t*t).sum(-1,keepdims=True)+1e-6); q=l2(g['gdn.q'].astype(float))/4; k=l2(g['gdn.k'].astype(float)); C=32; T=70; O=np.zeros((T,4,16)); S=g['gdn.s0'].astype(float).copy()
for h in range(4):
    for s0 in range(0,T,C):
        sl=slice(s0,min(T,s0+C)); Q,K,V=q[sl,h//2],k[sl,h//2],g['gdn.v'][sl,h].astype(float); be=g['gdn.beta'][sl,h][:,None].astype(float); G=np.cumsum(g['gdn.g'][sl,h].astype(float)); n=len(G)
        Dm=np.where(np.tril(np.ones((n,n)))>0,np.exp(np.minimum(G[:,None]-G[None],0)),0); A=np.tril(((be*K)@K.T)*Dm,-1); Mi=np.linalg.inv(np.eye(n)+A); U=Mi@(be*V); Wd=Mi@(be*K*np.exp(G)[:,None]); Vp=U-Wd@S[h]
        O[sl,h]=(Q*np.exp(G)[:,None])@S[h]+((Q@K.T)*Dm)@Vp; S[h]=np.exp(G[-1])*S[h]+(K*np.exp(G[-1]-G)[:,None]).T@Vp
print('chunk form',np.abs(O-g['gdn.out']).max(),np.abs(S-g['gdn.s1']).max())
